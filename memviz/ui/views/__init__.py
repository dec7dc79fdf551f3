"""What each part of the page says, as HTML, from frozen results. No gradio here; each is tested as text."""
