"""Values of keys found by trying: learning rate, size of a batch, loader processes, each in a process of its own."""
