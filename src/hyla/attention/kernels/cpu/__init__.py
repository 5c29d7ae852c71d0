"""Small heads on a CPU: a kernel in C++, compiled by the machine's own compiler."""
