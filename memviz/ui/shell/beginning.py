"""A page that has just come asks what its visitor had open. What is clicked before it has heard waits until then: it
would be answered for an empty session, which the first answer then replaces."""

from __future__ import annotations

from memviz.ui.html.markup import Html

BEGINS = Html('<script>document.documentElement.dataset.mvBegins = "";</script>')
"""Pages that were saved never ask, and have none of this."""
IS_KNOWN = "() => window.dispatchEvent(new CustomEvent('memviz:known'))"
"""base.js hears it. Said too where the answer is an error."""
