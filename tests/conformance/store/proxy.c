/* SPDX-License-Identifier: Apache-2.0
 * The proxy of proxy.h. */
#include "tests/conformance/store/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS_MAX 512
#define MESSAGE_MAX     (48 * 1024 * 1024)
#define HEADER          16
#define OP_MSG          2013
#define KEY_AT          (HEADER + 4 + 1 + 4 + 1)
#define SLICE_MS        50

struct connection {
    struct proxy *proxy;
    pthread_t thread;
    int client, server;
    bool used, done;
};

struct proxy {
    int listener, port, server_port;
    pthread_t acceptor;
    atomic_bool stopping, down;
    atomic_int met, generation; /* of silences and of "down" */
    pthread_mutex_t lock;
    char command[32];
    enum proxy_action action;
    int times;
    bson_t *answer;
    struct connection connections[CONNECTIONS_MAX];
};

static void die(const char *what)
{
    perror(what);
    abort();
}

static bool read_whole(int fd, void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(fd, (char *)data + done, size - done, 0);

        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        if (n > 0)
            done += (size_t)n;
    }
    return true;
}

static bool write_whole(int fd, const void *data, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0)
            done += (size_t)n;
    }
    return true;
}

static int32_t number_at(const unsigned char *message, size_t at)
{
    int32_t value;

    memcpy(&value, message + at, 4);
    return value;
}

/* One whole message, malloc'd. */
static unsigned char *read_message(int fd, size_t *size)
{
    unsigned char head[4], *message;
    int32_t length;

    if (!read_whole(fd, head, 4))
        return NULL;
    length = number_at(head, 0);
    if (length < HEADER || length > MESSAGE_MAX)
        return NULL;
    message = malloc((size_t)length + 1);
    if (message == NULL)
        return NULL;
    memcpy(message, head, 4);
    if (!read_whole(fd, message + 4, (size_t)length - 4)) {
        free(message);
        return NULL;
    }
    message[length] = '\0';
    *size = (size_t)length;
    return message;
}

static bool write_answer(int fd, int32_t to, const bson_t *answer)
{
    unsigned char head[HEADER + 5] = {0};
    int32_t values[4] = {(int32_t)(sizeof(head) + answer->len), 99, to, OP_MSG};

    memcpy(head, values, sizeof(values));
    return write_whole(fd, head, sizeof(head)) && write_whole(fd, bson_get_data(answer), answer->len);
}

/* Does a rule apply? Uses it up. */
static bool take_rule(struct proxy *proxy, const unsigned char *message, size_t size, enum proxy_action *action,
                      bson_t **answer)
{
    bool taken = false;

    if (size <= KEY_AT || number_at(message, 12) != OP_MSG)
        return false;
    pthread_mutex_lock(&proxy->lock);
    if (proxy->times > 0 && strcmp((const char *)message + KEY_AT, proxy->command) == 0) {
        proxy->times--;
        *action = proxy->action;
        *answer = proxy->answer != NULL ? bson_copy(proxy->answer) : NULL;
        taken = true;
        atomic_fetch_add(&proxy->met, 1);
    }
    pthread_mutex_unlock(&proxy->lock);
    return taken;
}

static void keep_quiet(struct proxy *proxy)
{
    int generation = atomic_load(&proxy->generation);

    while (!atomic_load(&proxy->stopping) && atomic_load(&proxy->generation) == generation)
        usleep(SLICE_MS * 1000);
}

/* What a rule asks for. Returns false when the connection ends. */
static bool act(struct connection *connection, enum proxy_action action, const bson_t *answer,
                const unsigned char *message, size_t size)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    unsigned char *reply;
    size_t reply_size;

    if (action == PROXY_CUT_BEFORE)
        return false;
    if (action == PROXY_SWALLOW) {
        keep_quiet(connection->proxy);
        return false;
    }
    if (action == PROXY_ANSWER)
        return write_answer(connection->client, number_at(message, 4), answer);
    if (!write_whole(connection->server, message, size))
        return false;
    if (action == PROXY_SILENCE) {
        keep_quiet(connection->proxy);
        return false;
    }
    reply = read_message(connection->server, &reply_size);
    free(reply);
    if (action == PROXY_REPLACE)
        return write_answer(connection->client, number_at(message, 4), answer);
    if (action == PROXY_RESET_AFTER)
        setsockopt(connection->client, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    return false;
}

/* One message from the client on. */
static bool pass_request(struct connection *connection)
{
    enum proxy_action action;
    unsigned char *message;
    bson_t *answer = NULL;
    size_t size;
    bool good;

    message = read_message(connection->client, &size);
    if (message == NULL)
        return false;
    if (take_rule(connection->proxy, message, size, &action, &answer))
        good = act(connection, action, answer, message, size);
    else
        good = write_whole(connection->server, message, size);
    if (answer != NULL)
        bson_destroy(answer);
    free(message);
    return good;
}

static bool pass_reply(struct connection *connection)
{
    char buffer[65536];
    ssize_t n = recv(connection->server, buffer, sizeof(buffer), 0);

    return n > 0 && write_whole(connection->client, buffer, (size_t)n);
}

static void *serve(void *arg)
{
    struct connection *connection = arg;
    struct proxy *proxy = connection->proxy;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)proxy->server_port)};
    int generation = atomic_load(&proxy->generation);
    bool good;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection->server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    good = connection->server >= 0 && connect(connection->server, (struct sockaddr *)&at, sizeof(at)) == 0;
    while (good && !atomic_load(&proxy->stopping)) {
        struct pollfd fds[2] = {{connection->client, POLLIN, 0}, {connection->server, POLLIN, 0}};

        if (poll(fds, 2, SLICE_MS) < 0 && errno != EINTR)
            break;
        if (atomic_load(&proxy->down) && atomic_load(&proxy->generation) != generation)
            break;
        if (fds[0].revents != 0)
            good = pass_request(connection);
        if (good && fds[1].revents != 0)
            good = pass_reply(connection);
    }
    if (connection->server >= 0)
        close(connection->server);
    close(connection->client);
    pthread_mutex_lock(&proxy->lock);
    connection->done = true;
    pthread_mutex_unlock(&proxy->lock);
    return NULL;
}

static void adopt(struct proxy *proxy, int client)
{
    pthread_mutex_lock(&proxy->lock);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        struct connection *connection = &proxy->connections[i];

        if (connection->used && connection->done) {
            pthread_join(connection->thread, NULL);
            connection->used = false;
        }
        if (!connection->used) {
            memset(connection, 0, sizeof(*connection));
            connection->used = true;
            connection->proxy = proxy;
            connection->client = client;
            if (pthread_create(&connection->thread, NULL, serve, connection) != 0)
                die("pthread_create");
            pthread_mutex_unlock(&proxy->lock);
            return;
        }
    }
    pthread_mutex_unlock(&proxy->lock);
    close(client);
}

static int listen_at(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
        bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, 256) != 0)
        die("listen");
    return fd;
}

static void *accept_all(void *arg)
{
    struct proxy *proxy = arg;

    while (!atomic_load(&proxy->stopping)) {
        struct pollfd fd = {.events = POLLIN};
        int client;

        if (atomic_load(&proxy->down)) {
            if (proxy->listener >= 0)
                close(proxy->listener);
            proxy->listener = -1;
            usleep(SLICE_MS * 200);
            continue;
        }
        if (proxy->listener < 0)
            proxy->listener = listen_at(proxy->port);
        fd.fd = proxy->listener;
        if (poll(&fd, 1, SLICE_MS / 5) <= 0)
            continue;
        client = accept(proxy->listener, NULL, NULL);
        if (client >= 0)
            adopt(proxy, client);
    }
    return NULL;
}

struct proxy *proxy_start(int server_port)
{
    struct proxy *proxy = calloc(1, sizeof(*proxy));
    struct sockaddr_in at;
    socklen_t size = sizeof(at);

    if (proxy == NULL)
        die("proxy");
    proxy->server_port = server_port;
    pthread_mutex_init(&proxy->lock, NULL);
    proxy->listener = listen_at(0);
    if (getsockname(proxy->listener, (struct sockaddr *)&at, &size) != 0)
        die("getsockname");
    proxy->port = ntohs(at.sin_port);
    if (pthread_create(&proxy->acceptor, NULL, accept_all, proxy) != 0)
        die("pthread_create");
    return proxy;
}

void proxy_stop(struct proxy *proxy)
{
    atomic_store(&proxy->stopping, true);
    pthread_join(proxy->acceptor, NULL);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        if (proxy->connections[i].used)
            pthread_join(proxy->connections[i].thread, NULL);
    }
    if (proxy->listener >= 0)
        close(proxy->listener);
    if (proxy->answer != NULL)
        bson_destroy(proxy->answer);
    pthread_mutex_destroy(&proxy->lock);
    free(proxy);
}

int proxy_port(const struct proxy *proxy)
{
    return proxy->port;
}

void proxy_rule(struct proxy *proxy, const char *command, enum proxy_action action, int times, const bson_t *answer)
{
    pthread_mutex_lock(&proxy->lock);
    snprintf(proxy->command, sizeof(proxy->command), "%s", command);
    proxy->action = action;
    proxy->times = times;
    if (proxy->answer != NULL)
        bson_destroy(proxy->answer);
    proxy->answer = answer != NULL ? bson_copy(answer) : NULL;
    atomic_store(&proxy->met, 0);
    pthread_mutex_unlock(&proxy->lock);
}

void proxy_clear(struct proxy *proxy)
{
    pthread_mutex_lock(&proxy->lock);
    proxy->times = 0;
    pthread_mutex_unlock(&proxy->lock);
}

int proxy_met(struct proxy *proxy)
{
    return atomic_load(&proxy->met);
}

void proxy_speak(struct proxy *proxy)
{
    atomic_fetch_add(&proxy->generation, 1);
}

void proxy_down(struct proxy *proxy, bool down)
{
    atomic_store(&proxy->down, down);
    atomic_fetch_add(&proxy->generation, 1);
}
