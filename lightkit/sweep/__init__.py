"""Many runs as one: a plan of jobs that is checked before the first starts, carried out by an engine, and repeated at will."""
