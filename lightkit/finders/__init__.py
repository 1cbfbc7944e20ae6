"""Values of keys that are found by trying: learning rate and loader processes, each in a process of its own."""
