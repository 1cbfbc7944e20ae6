"""Other processes and what they share: to start, end, fork, lock, follow, write whole, here and nowhere else."""
