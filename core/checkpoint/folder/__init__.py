"""A checkpoint folder, local or remote: one rank writes its part, and reads what it needs."""
