"""The paper's figures and settings, and the demo."""
