"""What a run costs in memory and time, and where both go."""
