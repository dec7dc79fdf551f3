"""Messages about errors of other libraries."""

from memviz.errors import without_frames


def test_frames_of_c_plus_plus_are_left_out_and_what_a_program_says_in_lines_stays() -> None:
    said = "randint(): Overflow when unpacking long long"
    frames = "Exception raised from THPUtils_unpackLong (most recent call first):\nframe #0: c10::Error::Error()"
    assert without_frames(f"{said}\n{frames}") == said
    assert (
        without_frames("loading failed:\n  size mismatch for weight") == "loading failed:\n  size mismatch for weight"
    )
