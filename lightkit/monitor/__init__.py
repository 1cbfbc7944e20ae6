"""The machine: its GPUs, processors, memory and disk, watched while a run trains."""
