"""What the components in the browser are given, and what they ask for: made from a trace, and without Gradio."""
