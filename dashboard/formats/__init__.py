"""How Django writes dates where no template says it: in the admin."""
