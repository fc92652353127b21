"""The logic behind each Space: one folder a page. No Gradio here."""
