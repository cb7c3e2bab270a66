"""The task the demo learns: adding two digits, with answers a program can check."""

from collections.abc import Sequence

import numpy as np

END = 0
"""The token that ends an answer and fills up what follows it."""

CHARACTERS = "0123456789+="
VOCAB_SIZE = 1 + len(CHARACTERS)
PROMPT_LENGTH = len("3+4=")


def sample_prompts(count: int, rng: np.random.Generator) -> list[str]:
    """Draw `count` sums of two digits, such as "3+4="."""
    return [f"{left}+{right}=" for left, right in rng.integers(0, 10, (count, 2))]


def encode(text: str) -> list[int]:
    """Turn a text into its token ids, one for each character."""
    return [1 + CHARACTERS.index(character) for character in text]


def decode(tokens: Sequence[int]) -> str:
    """Turn token ids into the text before the first END."""
    characters = []
    for token in tokens:
        if token == END:
            break
        characters.append(CHARACTERS[token - 1])
    return "".join(characters)


def reward(prompt: str, response: str) -> float:
    """Rate an answer by its text, from -0.5 to 1.0.

    The right answer earns 1.0 and any other number up to 0.5, the more the closer it is. What is
    not a number loses 0.5, but every digit in it regains some, so that a network that knows nothing
    yet learns to write numbers first.
    """
    answer = sum(int(digit) for digit in prompt.rstrip("=").split("+"))
    if response == str(answer):
        return 1.0
    if response.isdecimal():
        return 0.5 / (1 + abs(int(response) - answer))
    digits = sum(character.isdecimal() for character in response)
    return 0.4 * digits / max(len(response), 1) - 0.5
