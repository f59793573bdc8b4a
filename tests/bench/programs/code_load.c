/* SPDX-License-Identifier: Apache-2.0
 *
 * sk-bench-code: one and the same request to a code sandbox, again and again, over kept connections. Either each
 * connection asks again as soon as it has its answer (closed), or requests begin at a fixed rate, whether others were
 * answered or not (open); then a latency counts from when the request was due. One thread on epoll, no parser beyond
 * the status and the length, so that it takes as little of the machine as it can. Prints one JSON object. */
#include "tests/bench/programs/load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX  65536 /* head and body of one answer: the tasks here have small results */
#define EVENTS_MAX  256
#define GRACE_US    30000000 /* for answers that are still owed when the time is over */
#define CLIENTS_MAX 16384
#define SUCCESS     "\"success\":true"

struct connection {
    int fd;
    bool busy;        /* owes an answer */
    bool measured;    /* of the request it owes: due after the warm-up */
    int64_t due_us;   /* when the request was due */
    size_t sent, got; /* of the request; of the answer */
    struct connection *next_idle;
    char answer[ANSWER_MAX + 1];
};

static struct {
    struct sockaddr_in address;
    char *request;
    size_t request_length;
    const char *expect;
    double rate;
    int clients, poll, timer;
    struct connection **all;
    int open;
    struct connection *idle;
    int64_t measure_us, end_us;
    int owed; /* busy connections */
    struct samples ok, refused;
    long long failed, other, broken, unsent, begun;
    char sample[512]; /* of an answer that was not expected */
} s;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "sk-bench-code: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void wish(struct connection *c, uint32_t events, int operation)
{
    struct epoll_event event = {.events = events, .data.ptr = c};

    if (epoll_ctl(s.poll, operation, c->fd, &event) != 0)
        die("epoll_ctl");
}

static void connect_to(struct connection *c)
{
    int on = 1;

    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
        (connect(c->fd, (struct sockaddr *)&s.address, sizeof(s.address)) != 0 && errno != EINPROGRESS))
        die("connect");
    wish(c, EPOLLIN, EPOLL_CTL_ADD);
}

static struct connection *new_connection(void)
{
    struct connection *c = calloc(1, sizeof(*c));

    if (c == NULL)
        die("memory");
    s.all[s.open++] = c;
    connect_to(c);
    return c;
}

static void send_more(struct connection *c)
{
    ssize_t n = send(c->fd, s.request + c->sent, s.request_length - c->sent, MSG_NOSIGNAL);

    if (n < 0 && errno != EAGAIN)
        return; /* its end is seen by reading */
    c->sent += n > 0 ? (size_t)n : 0;
    if (c->sent < s.request_length)
        wish(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

static void begin(struct connection *c, int64_t due)
{
    c->busy = true;
    c->due_us = due;
    c->measured = due >= s.measure_us && due < s.end_us;
    c->sent = c->got = 0;
    s.owed++;
    s.begun += c->measured;
    send_more(c);
}

/* The request is over; what follows depends on the kind of load. */
static void next(struct connection *c)
{
    int64_t now = load_now_us();

    c->busy = false;
    s.owed--;
    if (s.rate == 0 && now < s.end_us) {
        begin(c, now);
        return;
    }
    c->next_idle = s.idle;
    s.idle = c;
}

static void reconnect(struct connection *c)
{
    close(c->fd);
    connect_to(c);
}

static void count(const struct connection *c, int status, const char *body)
{
    int64_t took = load_now_us() - c->due_us;

    if (!c->measured)
        return;
    if (status == 200 && strstr(body, SUCCESS) != NULL && strstr(body, s.expect) != NULL) {
        samples_add(&s.ok, took);
        return;
    }
    if (status == 429) {
        samples_add(&s.refused, took);
        return;
    }
    if (status == 200)
        s.failed++;
    else
        s.other++;
    if (s.sample[0] == '\0')
        snprintf(s.sample, sizeof(s.sample), "%d %.400s", status, body);
}

/* True when the answer is whole. */
static bool whole(struct connection *c)
{
    char *end = strstr(c->answer, "\r\n\r\n"), *length;
    size_t wanted;
    bool closes;

    if (end == NULL)
        return false;
    *end = '\0';
    length = strcasestr(c->answer, "\r\nContent-Length:");
    closes = strcasestr(c->answer, "\r\nConnection: close") != NULL;
    *end = '\r';
    if (length == NULL) {
        errno = EPROTO;
        die("an answer without Content-Length");
    }
    wanted = (size_t)(end + 4 - c->answer) + strtoul(length + strlen("\r\nContent-Length:"), NULL, 10);
    if (wanted > ANSWER_MAX) {
        errno = EMSGSIZE;
        die("an answer");
    }
    if (c->got < wanted)
        return false;
    count(c, (int)strtol(c->answer + strlen("HTTP/1.1 "), NULL, 10), end + 4);
    if (closes)
        reconnect(c);
    return true;
}

static void on_event(struct connection *c, uint32_t events)
{
    ssize_t n;

    if ((events & EPOLLOUT) != 0 && c->busy) {
        wish(c, EPOLLIN, EPOLL_CTL_MOD);
        send_more(c);
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0)
        return;
    n = recv(c->fd, c->answer + c->got, ANSWER_MAX - c->got, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        /* A kept connection may end between two requests; in the middle of one it is a broken promise. */
        reconnect(c);
        if (c->busy) {
            s.broken += c->measured;
            next(c);
        }
        return;
    }
    c->got += (size_t)n;
    c->answer[c->got] = '\0';
    if (c->busy && whole(c))
        next(c);
}

/* Open load: everything that is due by now. */
static void send_due(int64_t start, long long *sent)
{
    int64_t now = load_now_us();

    for (;;) {
        int64_t due = start + (int64_t)((double)*sent * 1e6 / s.rate);
        struct connection *c = s.idle;

        if (due > now || due >= s.end_us)
            return;
        (*sent)++;
        if (c != NULL) {
            s.idle = c->next_idle;
        } else if (s.open < s.clients) {
            c = new_connection();
        } else {
            s.unsent += due >= s.measure_us;
            continue;
        }
        begin(c, due);
    }
}

static void run(double seconds, double warm_up)
{
    int64_t start = load_now_us();
    long long sent = 0;
    struct epoll_event events[EVENTS_MAX];

    s.measure_us = start + (int64_t)(warm_up * 1e6);
    s.end_us = s.measure_us + (int64_t)(seconds * 1e6);
    if (s.rate > 0) {
        int64_t period_ns = (int64_t)(1e9 / s.rate);
        struct itimerspec every;

        period_ns = period_ns < 1000000 ? 1000000 : period_ns; /* several are due at once then */
        every.it_interval = (struct timespec){period_ns / 1000000000, period_ns % 1000000000};
        every.it_value = every.it_interval;
        s.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        if (s.timer < 0 || timerfd_settime(s.timer, 0, &every, NULL) != 0 ||
            epoll_ctl(s.poll, EPOLL_CTL_ADD, s.timer, &(struct epoll_event){.events = EPOLLIN}) != 0)
            die("timer");
        send_due(start, &sent);
    } else {
        for (int i = 0; i < s.clients; i++)
            begin(new_connection(), start);
    }
    for (;;) {
        int64_t now = load_now_us();
        int n;

        if ((now >= s.end_us && s.owed == 0) || now >= s.end_us + GRACE_US)
            return;
        n = epoll_wait(s.poll, events, EVENTS_MAX, now < s.end_us ? (int)((s.end_us - now) / 1000) + 1 : 1000);
        for (int i = 0; i < n; i++) {
            uint64_t turns;

            if (events[i].data.ptr == NULL)
                (void)!read(s.timer, &turns, sizeof(turns));
            else
                on_event(events[i].data.ptr, events[i].events);
        }
        if (s.rate > 0)
            send_due(start, &sent);
    }
}

static void load_request(const char *path, const char *file, const char *token)
{
    FILE *in = fopen(file, "rb");
    char *body = malloc(16 << 20);
    size_t length, size;
    int head;

    if (in == NULL || body == NULL)
        die(file);
    length = fread(body, 1, 16 << 20, in);
    if (ferror(in) != 0)
        die(file);
    fclose(in);
    size = length + 1024;
    s.request = malloc(size);
    if (s.request == NULL)
        die("memory");
    head = snprintf(s.request, size,
                    "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
                    "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                    path, token, length);
    if (head < 0 || (size_t)head >= 1024) {
        errno = EMSGSIZE;
        die("the head of the request");
    }
    memcpy(s.request + head, body, length);
    s.request_length = (size_t)head + length;
    free(body);
}

static const char *option(int argc, char **argv, const char *name, const char *missing)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i] + 2, name) == 0)
            return argv[i + 1];
    }
    if (missing == NULL) {
        fprintf(stderr, "usage: sk-bench-code --port PORT --path PATH --body FILE [--token TEXT] [--expect TEXT]\n"
                        "    [--clients N] [--rate PER_SECOND] [--seconds N] [--warm-up N]\n");
        exit(2);
    }
    return missing;
}

int main(int argc, char **argv)
{
    double seconds, warm_up;
    struct rlimit files;
    json_t *out;
    int status;

    s.address.sin_family = AF_INET;
    s.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s.address.sin_port = htons((uint16_t)strtol(option(argc, argv, "port", NULL), NULL, 10));
    load_request(option(argc, argv, "path", NULL), option(argc, argv, "body", NULL), option(argc, argv, "token", ""));
    s.expect = option(argc, argv, "expect", "");
    s.clients = (int)strtol(option(argc, argv, "clients", "1"), NULL, 10);
    s.rate = strtod(option(argc, argv, "rate", "0"), NULL);
    seconds = strtod(option(argc, argv, "seconds", "5"), NULL);
    warm_up = strtod(option(argc, argv, "warm-up", "0.5"), NULL);
    if (s.clients < 1 || s.clients > CLIENTS_MAX)
        return 2;
    s.all = calloc((size_t)s.clients, sizeof(struct connection *));
    s.poll = epoll_create1(EPOLL_CLOEXEC);
    if (s.all == NULL || s.poll < 0 || getrlimit(RLIMIT_NOFILE, &files) != 0)
        die("start");
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    samples_init(&s.ok);
    samples_init(&s.refused);
    run(seconds, warm_up);
    out = json_pack("{s:f, s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:i, s:i, s:I, s:s}", "seconds", seconds, "begun",
                    (json_int_t)s.begun, "ok", samples_json(&s.ok), "refused", samples_json(&s.refused), "failed",
                    (json_int_t)s.failed, "other", (json_int_t)s.other, "broken", (json_int_t)s.broken, "unsent",
                    (json_int_t)s.unsent, "unanswered", s.owed, "connections", s.open, "cpuUs",
                    (json_int_t)load_cpu_us(), "sample", s.sample);
    status = out == NULL || json_dumpf(out, stdout, JSON_COMPACT) != 0;
    json_decref(out);
    printf("\n");
    return status;
}
