/* SPDX-License-Identifier: Apache-2.0
 *
 * The stream around each connection of the driver. It passes everything through, and besides:
 *   - counts commands that left in full, handshakes not counted: only then may a write have been applied;
 *   - clips every read and write to the deadline of the call in progress;
 *   - lets another thread end a blocked call at once (shutdown of the socket), and makes the driver take that for a
 *     time-out, which costs this one connection. A "network error", or any error of a handshake, would make it drop the
 *     connections of all clients and write the server off until the next look of its monitor: so a handshake is not
 *     cut short for a call that has ended, unless it takes so long that the server is to blame. */
#include "common/store/mongo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define STREAM_TYPE     4711 /* the driver only compares it with its own */
#define OP_MSG          2013
#define OP_QUERY        2004
#define READ_BUFFER     1024 /* of the driver's buffered layer, as it uses itself */
#define HEADER_SIZE     16
#define PEEK_SIZE       64 /* header, flags, section kind, document length, type and name of the first field */
#define FIRST_KEY_START (HEADER_SIZE + 4 + 1 + 4 + 1)

struct sk_mongo_stream {
    mongoc_stream_t vtable; /* must be first */
    mongoc_stream_t *inner;
    struct sk_mongo_client *client;
    int fd;                  /* -1 when it was not found: then a cancel waits for the time-out */
    atomic_bool established; /* the handshake is over: a command was sent */
    atomic_bool broken;      /* shut down or out of time: of no use any more */
    struct sk_mongo_stream *next;
};

static struct sk_mongo_stream *self_of(mongoc_stream_t *stream)
{
    return (struct sk_mongo_stream *)stream;
}

static uint32_t little_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Is this message part of the driver's handshake? Unknown shapes (compressed ones, for example) are taken for commands,
 * which errs on the side of "may have been applied". */
static bool is_handshake(const mongoc_iovec_t *iov, size_t count)
{
    static const char *const names[] = {"hello",        "isMaster",     "ismaster", "saslStart",
                                        "saslContinue", "authenticate", "getnonce"};
    unsigned char head[PEEK_SIZE + 1];
    size_t used = 0;

    for (size_t i = 0; i < count && used < PEEK_SIZE; i++) {
        size_t part = iov[i].iov_len < PEEK_SIZE - used ? iov[i].iov_len : PEEK_SIZE - used;

        memcpy(head + used, iov[i].iov_base, part);
        used += part;
    }
    head[used] = '\0';
    if (used < HEADER_SIZE)
        return false;
    if (little_endian(head + 12) == OP_QUERY)
        return true; /* this driver speaks OP_QUERY only to say hello */
    if (little_endian(head + 12) != OP_MSG || used <= FIRST_KEY_START)
        return false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp((const char *)head + FIRST_KEY_START, names[i]) == 0)
            return true;
    }
    return false;
}

/* The time-out of one read or write: the driver's, clipped to the call's own. 0 = nothing left. */
static int32_t clip(const struct sk_mongo_stream *stream, int32_t timeout_ms)
{
    struct sk_mongo_client *client = stream->client;
    int64_t limit = client->timeout_ms;

    if (!atomic_load(&stream->established))
        return timeout_ms;
    /* Not the driver's, which is the URI's socketTimeoutMS: a call of long answers (setup) has more. */
    if (client->call != NULL)
        limit = sk_call_budget_ms(client->call, limit);
    if (atomic_load(&client->interrupted))
        return 0;
    return limit > INT32_MAX ? INT32_MAX : (int32_t)limit;
}

/* No time is left: the driver takes it for a time-out and closes the connection. */
static ssize_t out_of_time(struct sk_mongo_stream *stream)
{
    atomic_store(&stream->broken, true);
    errno = ETIMEDOUT;
    return -1;
}

static ssize_t stream_writev(mongoc_stream_t *base, mongoc_iovec_t *iov, size_t count, int32_t timeout_ms)
{
    struct sk_mongo_stream *stream = self_of(base);
    bool handshake = is_handshake(iov, count);
    size_t total = 0;
    ssize_t written;

    if (!handshake)
        atomic_store(&stream->established, true);
    timeout_ms = clip(stream, timeout_ms);
    if (timeout_ms == 0)
        return out_of_time(stream);
    for (size_t i = 0; i < count; i++)
        total += iov[i].iov_len;
    written = mongoc_stream_writev(stream->inner, iov, count, timeout_ms);
    /* A server does not act on half a message, so only one that left in full may have had an effect. */
    if (!handshake && written >= 0 && (size_t)written == total)
        stream->client->sent++;
    return written;
}

static ssize_t stream_readv(mongoc_stream_t *base, mongoc_iovec_t *iov, size_t count, size_t min_bytes,
                            int32_t timeout_ms)
{
    struct sk_mongo_stream *stream = self_of(base);

    timeout_ms = clip(stream, timeout_ms);
    if (timeout_ms == 0)
        return out_of_time(stream);
    return mongoc_stream_readv(stream->inner, iov, count, min_bytes, timeout_ms);
}

/* Takes the stream out of its client's list, after which nobody touches its descriptor any more. */
static void forget(struct sk_mongo_stream *stream)
{
    struct sk_mongo_stream **link;

    pthread_mutex_lock(&stream->client->lock);
    for (link = &stream->client->streams; *link != NULL; link = &(*link)->next) {
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    }
    stream->fd = -1;
    pthread_mutex_unlock(&stream->client->lock);
}

static void stream_destroy(mongoc_stream_t *base)
{
    struct sk_mongo_stream *stream = self_of(base);

    forget(stream);
    mongoc_stream_destroy(stream->inner);
    free(stream);
}

static void stream_failed(mongoc_stream_t *base)
{
    struct sk_mongo_stream *stream = self_of(base);

    forget(stream);
    mongoc_stream_failed(stream->inner);
    free(stream);
}

static int stream_close(mongoc_stream_t *base)
{
    forget(self_of(base));
    return mongoc_stream_close(self_of(base)->inner);
}

static int stream_flush(mongoc_stream_t *base)
{
    return mongoc_stream_flush(self_of(base)->inner);
}

static int stream_setsockopt(mongoc_stream_t *base, int level, int name, void *value, mongoc_socklen_t length)
{
    return mongoc_stream_setsockopt(self_of(base)->inner, level, name, value, length);
}

static mongoc_stream_t *stream_base(mongoc_stream_t *base)
{
    return self_of(base)->inner;
}

static bool stream_check_closed(mongoc_stream_t *base)
{
    return mongoc_stream_check_closed(self_of(base)->inner);
}

static bool stream_timed_out(mongoc_stream_t *base)
{
    struct sk_mongo_stream *stream = self_of(base);

    return atomic_load(&stream->broken) || atomic_load(&stream->client->interrupted) ||
           mongoc_stream_timed_out(stream->inner);
}

static bool stream_should_retry(mongoc_stream_t *base)
{
    return !atomic_load(&self_of(base)->client->interrupted) && mongoc_stream_should_retry(self_of(base)->inner);
}

/* TLS as the URI asks for it, by the driver's own layer. Takes the inner stream; NULL on failure. */
static mongoc_stream_t *add_tls(const mongoc_uri_t *uri, const mongoc_host_list_t *host, mongoc_stream_t *inner,
                                int32_t timeout_ms, bson_error_t *error)
{
    bool insecure = mongoc_uri_get_option_as_bool(uri, MONGOC_URI_TLSINSECURE, false);
    mongoc_ssl_opt_t options = *mongoc_ssl_opt_get_default();
    mongoc_stream_t *tls;

    options.pem_file = mongoc_uri_get_option_as_utf8(uri, MONGOC_URI_TLSCERTIFICATEKEYFILE, NULL);
    options.pem_pwd = mongoc_uri_get_option_as_utf8(uri, MONGOC_URI_TLSCERTIFICATEKEYFILEPASSWORD, NULL);
    options.ca_file = mongoc_uri_get_option_as_utf8(uri, MONGOC_URI_TLSCAFILE, NULL);
    options.weak_cert_validation = mongoc_uri_get_option_as_bool(uri, MONGOC_URI_TLSALLOWINVALIDCERTIFICATES, insecure);
    options.allow_invalid_hostname = mongoc_uri_get_option_as_bool(uri, MONGOC_URI_TLSALLOWINVALIDHOSTNAMES, insecure);
    tls = mongoc_stream_tls_new_with_hostname(inner, host->host, &options, 1);
    if (tls == NULL) {
        mongoc_stream_destroy(inner);
        bson_set_error(error, MONGOC_ERROR_STREAM, MONGOC_ERROR_STREAM_SOCKET, "TLS cannot be set up for %s",
                       host->host_and_port);
        return NULL;
    }
    if (!mongoc_stream_tls_handshake_block(tls, host->host, timeout_ms, error)) {
        mongoc_stream_destroy(tls);
        return NULL;
    }
    return tls;
}

mongoc_stream_t *sk_mongo_stream_open(const mongoc_uri_t *uri, const mongoc_host_list_t *host, void *arg,
                                      bson_error_t *error)
{
    struct sk_mongo_client *client = arg;
    int32_t timeout_ms = mongoc_uri_get_option_as_int32(uri, MONGOC_URI_CONNECTTIMEOUTMS, SK_MONGO_CONNECT_MS);
    struct sk_mongo_stream *stream = calloc(1, sizeof(*stream));
    mongoc_stream_t *inner;

    if (stream == NULL) {
        bson_set_error(error, MONGOC_ERROR_STREAM, MONGOC_ERROR_STREAM_CONNECT, "out of memory");
        return NULL;
    }
    atomic_init(&stream->established, false);
    atomic_init(&stream->broken, false);
    inner = sk_mongo_socket_open(client, host, timeout_ms, &stream->established, &stream->fd, error);
    if (inner != NULL && mongoc_uri_get_tls(uri))
        inner = add_tls(uri, host, inner, timeout_ms, error);
    if (inner == NULL) {
        free(stream);
        return NULL;
    }
    inner = mongoc_stream_buffered_new(inner, READ_BUFFER);
    stream->vtable = (mongoc_stream_t){
        .type = STREAM_TYPE,
        .destroy = stream_destroy,
        .close = stream_close,
        .flush = stream_flush,
        .writev = stream_writev,
        .readv = stream_readv,
        .setsockopt = stream_setsockopt,
        .get_base_stream = stream_base,
        .check_closed = stream_check_closed,
        .failed = stream_failed,
        .timed_out = stream_timed_out,
        .should_retry = stream_should_retry,
    };
    stream->inner = inner;
    stream->client = client;
    pthread_mutex_lock(&client->lock);
    stream->next = client->streams;
    client->streams = stream;
    pthread_mutex_unlock(&client->lock);
    return &stream->vtable;
}

void sk_mongo_stream_interrupt(void *arg)
{
    struct sk_mongo_client *client = arg;

    atomic_store(&client->interrupted, true);
    pthread_mutex_lock(&client->lock);
    for (struct sk_mongo_stream *stream = client->streams; stream != NULL; stream = stream->next) {
        if (stream->fd >= 0 && atomic_load(&stream->established)) {
            shutdown(stream->fd, SHUT_RDWR);
            atomic_store(&stream->broken, true);
        }
    }
    pthread_mutex_unlock(&client->lock);
}

bool sk_mongo_stream_broken(struct sk_mongo_client *client)
{
    bool broken = false;

    pthread_mutex_lock(&client->lock);
    for (struct sk_mongo_stream *stream = client->streams; stream != NULL; stream = stream->next)
        broken = broken || atomic_load(&stream->broken);
    pthread_mutex_unlock(&client->lock);
    return broken;
}
