"""A short soak of a few seeds: a load of mixed jobs while children, workers and Redis are killed.

``make soak`` runs for as long as you like; ``tests/unit/test_soak.py`` shows that it finds violations.
"""

from __future__ import annotations

import pytest

from soak import plan, report
from soak.checks import violations
from soak.run import Soak


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("seed", "topology"), [("13", "together"), ("12", "rabbitmq")])
def test_the_invariants_hold_after_a_short_soak(request, tmp_path, seed, topology):
    rabbit = request.getfixturevalue("rabbit_server") if topology == "rabbitmq" else None
    story = Soak(plan.make(seed, 14, topology), tmp_path, rabbit=rabbit, hurry=True).run()
    found = violations(story)
    print(*report.summary(story), sep="\n")
    assert not found, "\n".join([f"seed {seed}, {tmp_path}", *report.findings(story, found)])
    assert story.kinds["fault"]
