/* SPDX-License-Identifier: Apache-2.0
 *
 * A TLS server for one test: a certificate of its own making for one name, a thread that answers every connection with
 * "200 secret". */
#ifndef SK_TESTS_CODE_BROKER_TLS_H
#define SK_TESTS_CODE_BROKER_TLS_H

struct tls_server;

/* The certificate is written to `certificate` (a path). Aborts the test program when anything fails. */
struct tls_server *tls_start(const char *name, const char *certificate);
int tls_port(const struct tls_server *server);
/* Requests that were answered: handshakes that the client broke off do not count. */
int tls_answered(struct tls_server *server);
void tls_stop(struct tls_server *server);

#endif
