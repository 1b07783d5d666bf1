"""The typed program: types, values, equations, checker, printer and cost model."""
