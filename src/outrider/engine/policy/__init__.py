"""How much to draft: measured costs, tracked acceptance, and the choice between them."""
