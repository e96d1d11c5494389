"""What the agents of the workload do: chosen by chance, and the same in every attempt of one execution."""

import random

MOVES = ("step", "once", "twins", "settled", "failing", "doubled", "probe", "rest")
MOVES_MIN, MOVES_MAX = 3, 7
DYING = 0.12
"""Of all executions, those whose first attempt stops in the middle of its work."""
CANCELLED = 0.12
RACED = 0.12
"""Of all executions, those that the client cancels at the moment at which the agent completes them."""
CHATTY, BULKY = 0.1, 0.02
"""Of all executions, those that send a conversation with two calls, and those of which one step has a large result."""


class Plan:
    """What the agent does in every attempt of one execution: the same calls each time."""

    def __init__(self, choose: random.Random) -> None:
        self.moves = [choose.choice(MOVES) for _ in range(choose.randint(MOVES_MIN, MOVES_MAX))]
        if choose.random() < CHATTY:
            self.moves += ["chat", "chat"]
        if choose.random() < BULKY:
            self.moves.append("bulky")
        self.dies_at = choose.randrange(len(self.moves)) if choose.random() < DYING else None
        self.cancel_after = choose.uniform(0.0, 1.5) if choose.random() < CANCELLED else None
        self.is_raced = choose.random() < RACED
