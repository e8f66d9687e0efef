/* Ports for ranks that meet on this machine. */
#ifndef TSHI_TEST_PORTS_H
#define TSHI_TEST_PORTS_H

/* A TCP port that the kernel has chosen, another one in each call. No other process gets it while this one, or a
 * process that it has forked, lives; a rank that is told the port can listen there. */
int tshi_test_port(void);

#endif
