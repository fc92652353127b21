"""The logic behind each Space: one folder per page. No Gradio here."""
