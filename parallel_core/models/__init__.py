"""The models, as lists of layers (PyTorch modules) without parallelism."""
