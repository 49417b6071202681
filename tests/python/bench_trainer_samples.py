"""The samples that the trainer takes, step by step: the same windows of the same text, in the same order.

Sample *i* of an epoch is window `order(i)` of the text; the order is a permutation that is a function of (length, seed, epoch): a
Feistel network over the smallest power of four that holds them, walked on while a result lies outside. The trainer promises never to
change it, so it is written down here a second time, and held to two values of the trainer's own test.
"""

ROUNDS = 8
GOLDEN = 0x9E37_79B9_7F4A_7C15
WORD = (1 << 64) - 1


def mixed(x):
    x = ((x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB) & WORD
    return x ^ (x >> 31)


class Order:
    """A permutation of `0..length`."""

    def __init__(self, length, seed, epoch):
        self.length = length
        self.half = max(1, ((length - 1).bit_length() + 1) // 2)
        state = mixed((seed + GOLDEN) & WORD) ^ mixed((epoch * GOLDEN + 1) & WORD)
        self.keys = []
        for _ in range(ROUNDS):
            state = (state + GOLDEN) & WORD
            self.keys.append(mixed(state))

    def at(self, index):
        sample = self._permuted(index)
        while sample >= self.length:
            sample = self._permuted(sample)
        return sample

    def _permuted(self, index):
        mask = (1 << self.half) - 1
        left, right = (index >> self.half) & mask, index & mask
        for key in self.keys:
            left, right = right, left ^ (mixed(right ^ key) & mask)
        return left << self.half | right


def windows(text_length, length, seed, positions):
    """Where the windows at these global positions begin, in a text of so many tokens."""
    count = (text_length - 1) // length
    orders = {}
    for position in positions:
        epoch, index = divmod(position, count)
        if epoch not in orders:
            orders[epoch] = Order(count, seed, epoch)
        yield orders[epoch].at(index) * length


assert [Order(10, 0, 0).at(i) for i in range(8)] == [7, 1, 0, 9, 4, 5, 8, 3], "the trainer's order is another one"
assert Order(1_000_003, 42, 7).at(0) == 368_391, "the trainer's order is another one"
