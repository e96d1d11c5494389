"""Programs to read and to run: an agent over plain HTTP, and a demonstration of it being killed half-way."""
