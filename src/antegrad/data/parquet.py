"""Columns of parquet files, checked before they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from antegrad.data.error import DataError, PackageMissing

__all__ = ["read_columns", "vectors"]


def read_columns(path: Path, expected: Mapping[str, str]) -> dict[str, Any]:
    """The columns of the parquet file `path` as pyarrow arrays, without nulls and of one length.

    Args:
      expected: the Arrow type of each column, by its name, as Arrow writes it (``"int64"``); ``"float[]"`` stands for
        lists of f32, of fixed or variable size.

    Raises:
      DataError: no parquet file, or one with other columns.
      PackageMissing: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise PackageMissing("pyarrow", "reading a parquet file") from error
    try:
        with parquet.ParquetFile(path) as file:
            _check_schema(path, file.schema_arrow, expected)
            table = file.read(columns=list(expected))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as parquet, {error}") from error
    columns = {name: pyarrow.concat_arrays(table[name].chunks) for name in expected}
    for name, column in columns.items():
        if column.null_count:
            raise DataError(f"{path}: column {name} has {column.null_count} nulls in {len(column)} rows, expected none")
    return columns


def _check_schema(path: Path, schema: Any, expected: Mapping[str, str]) -> None:
    for name, type_name in expected.items():
        if name not in schema.names:
            raise DataError(f"{path}: expected a column {name} of {type_name}, found {', '.join(schema.names)}")
        found = schema.field(name).type
        if type_name == "float[]":
            fits = str(found).startswith(("list<", "fixed_size_list<")) and str(found.value_type) == "float"
        else:
            fits = str(found) == type_name
        if not fits:
            raise DataError(f"{path}: expected column {name} to be {type_name}, found {found}")


def vectors(path: Path, name: str, column: Any, width: int) -> np.ndarray:
    """A column of lists as f32[n,width]; a `DataError` names the first list of another length."""
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != width)
    if wrong.size:
        raise DataError(f"{path}: column {name} has {lengths[wrong[0]]} numbers in row {wrong[0]}, expected {width}")
    values = column.flatten()
    if values.null_count:
        raise DataError(f"{path}: column {name} has {values.null_count} nulls inside of its lists, expected none")
    return values.to_numpy(zero_copy_only=False).reshape(-1, width)
