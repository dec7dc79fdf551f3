"""Required facts of a sentence, for tests that leave its wording free."""


def missing(sentence: object, *facts: str) -> list[str]:
    """Return the facts that the sentence does not mention; a test compares it with an empty list."""
    return [fact for fact in facts if fact not in str(sentence)]
