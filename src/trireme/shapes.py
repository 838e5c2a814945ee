"""The one shape legend of the project. Tensors carry it as a suffix: ``q_BTHK``.

B  sequences in a micro-batch        D  width of the model          V  vocabulary
T  query tokens of a sequence        H  query heads                 E  experts
S  key tokens of a sequence          G  key/value heads             C  expert capacity
L  layers                            K  width of one head           F  width of the feed-forward part
"""

from __future__ import annotations

LEGEND = {
    "B": "sequences",
    "T": "query tokens",
    "S": "key tokens",
    "D": "model width",
    "H": "query heads",
    "G": "key/value heads",
    "K": "head width",
    "F": "feed-forward width",
    "V": "vocabulary",
    "E": "experts",
    "C": "expert capacity",
    "L": "layers",
}
