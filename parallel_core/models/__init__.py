"""Models: lists of layers without parallelism."""
