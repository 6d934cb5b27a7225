"""New study: its forms, what each kind of study would run, and how long that takes."""
