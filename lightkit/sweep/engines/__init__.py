"""Where the jobs of a sweep run: in slots of this machine, in the queue of a cluster."""
