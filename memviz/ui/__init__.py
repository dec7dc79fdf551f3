from memviz.ui.quiet_gradio import write_no_stubs

write_no_stubs()
