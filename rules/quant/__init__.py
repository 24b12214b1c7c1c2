"""Rules: quant."""
