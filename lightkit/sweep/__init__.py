"""Many runs as one: a plan of jobs, checked before the first starts, carried out by an engine, and repeated at will."""
