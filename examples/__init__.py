"""Programs to read and to run: agents with the library and over plain HTTP, and one that is killed half-way."""
