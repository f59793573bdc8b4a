/* SPDX-License-Identifier: Apache-2.0
 *
 * The TLS server of the tests, over OpenSSL: one thread, one connection after the other. */
#include "tests/unit/code/broker/tls.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct tls_server {
    SSL_CTX *context;
    int fd, port;
    atomic_int answered;
    pthread_t thread;
};

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static X509 *make_certificate(EVP_PKEY *key, const char *name)
{
    X509 *cert = X509_new();
    X509_NAME *subject;
    X509_EXTENSION *names;
    char text[256];

    MUST(cert != NULL);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    subject = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, subject);
    snprintf(text, sizeof(text), "DNS:%s", name);
    names = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, text);
    MUST(names != NULL && X509_add_ext(cert, names, -1) == 1);
    X509_EXTENSION_free(names);
    MUST(X509_sign(cert, key, EVP_sha256()) > 0);
    return cert;
}

static void *serve(void *arg)
{
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret";
    struct tls_server *server = arg;
    int fd;

    while ((fd = accept(server->fd, NULL, NULL)) >= 0) {
        SSL *ssl = SSL_new(server->context);
        char request[4096];

        MUST(ssl != NULL && SSL_set_fd(ssl, fd) == 1);
        if (SSL_accept(ssl) == 1 && SSL_read(ssl, request, sizeof(request)) > 0 &&
            SSL_write(ssl, answer, sizeof(answer) - 1) > 0) {
            atomic_fetch_add(&server->answered, 1);
            SSL_shutdown(ssl);
        }
        SSL_free(ssl);
        close(fd);
    }
    return NULL;
}

struct tls_server *tls_start(const char *name, const char *certificate)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct tls_server *server = calloc(1, sizeof(*server));
    socklen_t length = sizeof(address);
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert;
    FILE *out = fopen(certificate, "w");

    MUST(server != NULL && key != NULL && out != NULL);
    cert = make_certificate(key, name);
    MUST(PEM_write_X509(out, cert) == 1 && fclose(out) == 0);
    server->context = SSL_CTX_new(TLS_server_method());
    MUST(server->context != NULL && SSL_CTX_use_certificate(server->context, cert) == 1 &&
         SSL_CTX_use_PrivateKey(server->context, key) == 1);
    X509_free(cert);
    EVP_PKEY_free(key);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(bind(server->fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(server->fd, 8) == 0 &&
         getsockname(server->fd, (struct sockaddr *)&address, &length) == 0);
    server->port = ntohs(address.sin_port);
    MUST(pthread_create(&server->thread, NULL, serve, server) == 0);
    return server;
}

int tls_port(const struct tls_server *server)
{
    return server->port;
}

int tls_answered(struct tls_server *server)
{
    return atomic_load(&server->answered);
}

void tls_stop(struct tls_server *server)
{
    shutdown(server->fd, SHUT_RDWR); /* wakes accept */
    pthread_join(server->thread, NULL);
    close(server->fd);
    SSL_CTX_free(server->context);
    free(server);
}
