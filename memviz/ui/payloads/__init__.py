"""Values and answers for the components in the browser, made from a trace, without Gradio."""
