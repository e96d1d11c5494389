"""The parts of the dispatcher: what it appends, whose turn it is, how a dispatch is claimed and delivered."""
