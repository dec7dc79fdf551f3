"""The commands, and what the command line says of itself."""

VERSION = "0.1.0"
PROGRAM = "python -m memviz"
DESCRIPTION = "Explore PyTorch memory snapshots."
COMMANDS = {
    "summary": "What a snapshot holds, and what to know about it.",
    "peak": "What the peak is made of.",
    "findings": "What is worth knowing about a snapshot, ranked by bytes.",
    "at": "What is live after an event or at a time.",
    "diff": "From one peak to another: what holds more, what less.",
    "ranks": "Many ranks: the highest, who is out of line and why.",
    "replay": "What if: other allocator settings, or another card.",
    "report": "One self-contained page to keep or to send.",
    "export": "Write a trace again: normalised, stripped, as JSON or as CSV.",
    "open": "Start the page, with these files open in it.",
    "run": "Run a model with optimizations: predicted for a card, or measured on a GPU.",
    "fit": "Find the cheapest way to make a model fit on a card, predicted.",
    "reproduce": "The published tables of the four seeds beside ours.",
    "predict": "Run your own script on a GPU that is not there, and say what it would take.",
    "record": "Run your own script with the recording on, and write what it allocated.",
}
"""Each is a file of this folder that is not read before somebody asks for it: nobody pays for what another needs."""
EPILOG = "Every command reads a snapshot of any PyTorch release: a pickle or JSON, plain or gzipped."
