"""antegrad's models as users of JAX and of PyTorch write them, which start from antegrad's own weights.

    pair = twin.cnn(key=random.key(0))                  # the model, and its two twins
    pair.jax_apply(*pair.arrays(), images)              # logits, and the new state
    pair.torch_module()(to_torch(images))               # logits

Modules: `jax_models` and `torch_models` are the twins, `torch_weights` carries weights over, `twin` puts the three
sides of a model together, `recipes` describes an optimizer once for all, `jax_training` and `torch_training` have one
training step each, `runs` trains on given batches with any of the three, `batches` draws these, and `curves` is a
script that compares whole loss curves. Those whose name begins with `torch` import torch; the others do so in the
functions that need it.
"""
