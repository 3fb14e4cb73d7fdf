"""`core go-on`: a script in several processes, which goes on in those that are left when one is
lost.

The launcher and each process talk in lines of JSON on a pair of sockets:

1. A process sends `{"ready": true}`: it can begin. One that has come later waits, with the script's
   imports done.
2. `{"variables": {...}}` begins a round: the process sets them, runs the script and sends
   `{"done": true}`.
3. `{"leave": "..."}` ends the round: what the process waits for is broken off, the script's
   `finally` blocks run, and it is ready again. The processes that are left keep their numbers;
   others take the numbers that are free.
4. `{"end": true}` once all are done.
"""
