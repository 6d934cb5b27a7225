"""`./run`: the embedded yard. `up` (default), `password`, or any command of manage.py."""

from __future__ import annotations

import os
import sys

from dashboard.yard.home import ADMIN, Home, default_home


def password(home: Home) -> int:
    if not home.password_file.exists():
        print("No sign-in yet: it is made at the first ./run.")
        return 1
    print(f"user: {ADMIN}\npassword: {home.admin_password()}")
    return 0


def main(arguments: list[str]) -> int:
    command, *rest = arguments or ["up"]
    home = Home(default_home())
    if command == "password":
        return password(home)
    if command == "up":
        from dashboard.yard.up import Yard

        return Yard(home).run()
    home.prepare()
    env = home.environment(port=0)
    os.execve(sys.executable, [sys.executable, "manage.py", command, *rest], env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
