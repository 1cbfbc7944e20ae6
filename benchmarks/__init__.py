"""Speed of lightkit beside peers and floors, measured in the same run; see README.md."""
