/* Ranks: the same bits on all, whole messages however they are cut, strangers kept out, and every
 * way in which one can be lost, told by its number and in bounded time. */
#include "core_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#include "core/clock.h"
#include "core/peers.h"
#include "core/shard.h"

enum { RANKS_MAX = 4, NUMBERS = 200003 };

static int open_listener(int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* ---- ranks as threads of this process ---- */

typedef struct Rank {
    PeersOptions o;
    Status (*body)(struct Rank *r, Peers *p);
    Peers *peers;
    Status joined, status;
    char message[512];
    double seconds; /* of the body */
    float *numbers;
    pthread_t thread;
} Rank;

static atomic_int lost_calls;
static char lost_message[512];
static pthread_mutex_t lost_lock = PTHREAD_MUTEX_INITIALIZER;

static void on_lost(void *user, const char *message) {
    (void)user;
    pthread_mutex_lock(&lost_lock);
    snprintf(lost_message, sizeof lost_message, "%s", message);
    pthread_mutex_unlock(&lost_lock);
    atomic_fetch_add(&lost_calls, 1);
}

static void *rank_main(void *argument) {
    Rank *r = argument;
    r->joined = peers_join(&r->o, &r->peers);
    r->status = r->joined;
    if (r->joined == STATUS_OK) {
        const double start = seconds_now();
        r->status = r->body(r, r->peers);
        r->seconds = seconds_now() - start;
    }
    snprintf(r->message, sizeof r->message, "%s", status_message());
    peers_leave(r->peers, r->status == STATUS_OK);
    return NULL;
}

static void start(Rank *ranks, int count, double join_s, double timeout_s,
                  Status (*body)(Rank *, Peers *)) {
    int port;
    const int listener = open_listener(&port);
    for (int i = 0; i < count; i++)
        ranks[i] = (Rank){.o = {.rank = i,
                                .ranks = count,
                                .address = "127.0.0.1",
                                .port = port,
                                .listener = i == 0 ? listener : -1,
                                .run = 77,
                                .build = "test",
                                .join_timeout_s = join_s,
                                .timeout_s = timeout_s,
                                .lost = on_lost},
                          .body = body};
}

static void go(Rank *ranks, int count) {
    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    for (int i = 0; i < count; i++) pthread_join(ranks[i].thread, NULL);
}

/* ---- what they say ---- */

static float number(int rank, int i) {
    return (float)(1 + (i * 2654435761u >> 8) % 1000) / (float)(3 + rank);
}

static Status talk(Rank *r, Peers *p) {
    const int rank = peers_rank(p), ranks = peers_count(p);
    int64_t mine[3] = {rank, rank * rank, 7}, all[3 * RANKS_MAX] = {0}, told = rank == 0 ? 99 : 0;
    TRY(peers_gather(p, mine, all, sizeof mine));
    for (int i = 0; i < ranks; i++)
        if (all[3 * i] != i || all[3 * i + 1] != i * i || all[3 * i + 2] != 7)
            return status_set(STATUS_INTERNAL, "gathered wrongly");
    TRY(peers_broadcast(p, &told, sizeof told));
    if (told != 99) return status_set(STATUS_INTERNAL, "broadcast wrongly");
    for (int i = 0; i < NUMBERS; i++) r->numbers[i] = number(rank, i);
    TRY(peers_sum_f32(p, r->numbers, NUMBERS));
    return peers_agree(p, STATUS_OK);
}

static void sums_have_the_same_bits_everywhere(void **state) {
    (void)state;
    for (int count = 1; count <= RANKS_MAX; count++) {
        Rank ranks[RANKS_MAX];
        start(ranks, count, 20, 20, talk);
        for (int i = 0; i < count; i++) ranks[i].numbers = calloc(NUMBERS, sizeof(float));
        go(ranks, count);
        for (int r = 0; r < count; r++) {
            assert_string_equal(ranks[r].status == STATUS_OK ? "" : ranks[r].message, "");
            for (int i = 0; i < NUMBERS; i++) {
                float sum = number(0, i); /* in the order of the ranks */
                for (int k = 1; k < count; k++) sum += number(k, i);
                assert_memory_equal(&sum, &ranks[r].numbers[i], sizeof sum);
            }
        }
        for (int i = 0; i < count; i++) free(ranks[i].numbers);
    }
    assert_int_equal(atomic_load(&lost_calls), 0);
}

static void alone_needs_nobody(void **state) {
    (void)state;
    int64_t one = 5, all = 0;
    float x = 2;
    assert_int_equal(peers_rank(NULL), 0);
    assert_int_equal(peers_count(NULL), 1);
    assert_int_equal(peers_gather(NULL, &one, &all, sizeof one), STATUS_OK);
    assert_int_equal(all, 5);
    assert_int_equal(peers_sum_f32(NULL, &x, 1), STATUS_OK);
    assert_int_equal(peers_agree(NULL, STATUS_DATA), STATUS_DATA);
    peers_leave(NULL, true);
}

/* ---- failures that are told ---- */

static Status second_fails(Rank *r, Peers *p) {
    (void)r;
    Status mine = STATUS_OK;
    if (peers_rank(p) == 1) mine = status_set(STATUS_DATA, "picture 7 is torn");
    const Status s = peers_agree(p, mine);
    return s == STATUS_DATA ? STATUS_OK : status_set(STATUS_INTERNAL, "%s", status_name(s));
}

static void a_failure_is_everybodys(void **state) {
    (void)state;
    Rank ranks[3];
    start(ranks, 3, 20, 20, second_fails);
    go(ranks, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(ranks[i].status, STATUS_OK);
    assert_string_equal(ranks[1].message, "picture 7 is torn");
    assert_string_equal(ranks[0].message, "rank 1: picture 7 is torn");
    assert_string_equal(ranks[2].message, "rank 1: picture 7 is torn");
}

/* ---- losses ---- */

static Status last_leaves(Rank *r, Peers *p) {
    int64_t one = 1, all[RANKS_MAX];
    (void)r;
    if (peers_rank(p) == peers_count(p) - 1) return status_set(STATUS_MEMORY, "leaving");
    return peers_gather(p, &one, all, sizeof one);
}

static void a_rank_that_ends_is_named(void **state) {
    (void)state;
    Rank ranks[3];
    start(ranks, 3, 20, 20, last_leaves);
    go(ranks, 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].status, STATUS_PEER);
        assert_non_null(strstr(ranks[i].message, "lost rank 2"));
        assert_null(strstr(ranks[i].message, "rank 0 (")); /* nobody else is blamed */
        assert_true(ranks[i].seconds < 4);
    }
    assert_int_equal(status_exit_code(STATUS_PEER), 75);
}

/* Rank 0 is at something else while rank 2 ends, and rank 1 goes because of that. */
static Status last_leaves_a_busy_one(Rank *r, Peers *p) {
    const struct timespec pause = {1, 0};
    if (peers_rank(p) == 0) nanosleep(&pause, NULL);
    return last_leaves(r, p);
}

static void who_goes_after_a_loss_is_not_lost(void **state) {
    (void)state;
    Rank ranks[3];
    start(ranks, 3, 20, 20, last_leaves_a_busy_one);
    go(ranks, 3);
    assert_string_equal(ranks[1].message, "lost rank 2: rank 0 lost it");
    assert_int_equal(ranks[0].status, STATUS_PEER);
    assert_non_null(strstr(ranks[0].message, "lost rank 2 (pid "));
    assert_null(strstr(ranks[0].message, "rank 1"));
}

static Status first_leaves(Rank *r, Peers *p) {
    int64_t one = 1, all[RANKS_MAX];
    (void)r;
    if (peers_rank(p) == 0) return status_set(STATUS_MEMORY, "leaving");
    return peers_gather(p, &one, all, sizeof one);
}

static void the_first_rank_can_be_lost_too(void **state) {
    (void)state;
    Rank ranks[3];
    start(ranks, 3, 20, 20, first_leaves);
    go(ranks, 3);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(ranks[i].status, STATUS_PEER);
        assert_non_null(strstr(ranks[i].message, "lost rank 0"));
        assert_true(ranks[i].seconds < 4);
    }
}

/* It lives, as its life line says, but does not come. */
static Status second_sleeps(Rank *r, Peers *p) {
    const struct timespec pause = {2, 500000000};
    int64_t one = 1, all[RANKS_MAX];
    (void)r;
    if (peers_rank(p) == 1) nanosleep(&pause, NULL);
    return peers_gather(p, &one, all, sizeof one);
}

static void a_rank_that_does_not_come_is_given_up(void **state) {
    (void)state;
    Rank ranks[2];
    start(ranks, 2, 20, 1, second_sleeps);
    go(ranks, 2);
    assert_int_equal(ranks[0].status, STATUS_PEER);
    assert_non_null(strstr(ranks[0].message, "lost rank 1"));
    assert_non_null(strstr(ranks[0].message, "it did not come within 1 s"));
    assert_true(ranks[0].seconds < 2.4);
    assert_int_equal(ranks[1].status, STATUS_PEER);
}

/* Rank 2 lives, but does not come; rank 1 waits longer than rank 0 does. */
static Status comes_at_its_own_time(Rank *r, Peers *p) {
    const int rank = peers_rank(p);
    const struct timespec pause = {rank == 2 ? 3 : 0, rank == 0 ? 700000000 : 0};
    (void)r;
    nanosleep(&pause, NULL);
    return peers_agree(p, STATUS_OK);
}

/* Rank 1 must not take rank 0, which waits as well, for the one that is missing. */
static void the_right_one_is_blamed(void **state) {
    (void)state;
    Rank ranks[3];
    atomic_store(&lost_calls, 0);
    start(ranks, 3, 20, 1, comes_at_its_own_time);
    go(ranks, 3);
    assert_non_null(strstr(ranks[0].message, "rank 2 (pid "));
    assert_non_null(strstr(ranks[0].message, "it did not come within 1 s"));
    assert_string_equal(ranks[1].message, "lost rank 2: rank 0 lost it");
    assert_int_equal(ranks[2].status, STATUS_PEER);
    atomic_store(&lost_calls, 0);
}

static bool broken(void *user, char *message, size_t size) {
    snprintf(message, size, "%s", (const char *)user);
    return true;
}

static Status waits_for_what_is_broken(Rank *r, Peers *p) {
    const struct timespec pause = {0, 50000000};
    (void)r;
    peers_probe(p, broken, "the cards' connection broke");
    for (int i = 0; i < 200 && atomic_load(&lost_calls) == 0; i++) nanosleep(&pause, NULL);
    peers_probe(p, NULL, NULL);
    return STATUS_OK;
}

static void what_broke_elsewhere_is_told(void **state) {
    (void)state;
    Rank ranks[2];
    atomic_store(&lost_calls, 0);
    start(ranks, 2, 20, 1, waits_for_what_is_broken);
    go(ranks, 2);
    assert_true(atomic_load(&lost_calls) > 0);
    assert_string_equal(lost_message, "the cards' connection broke");
    atomic_store(&lost_calls, 0);
}

static Status waits_for_a_card(Rank *r, Peers *p) {
    const struct timespec pause = {0, 50000000};
    (void)r;
    peers_guard(p, "something on a card", 0.5);
    for (int i = 0; i < 100 && atomic_load(&lost_calls) == 0; i++) nanosleep(&pause, NULL);
    peers_unguard(p);
    return STATUS_OK;
}

static void waiting_elsewhere_is_bounded(void **state) {
    (void)state;
    Rank ranks[2];
    atomic_store(&lost_calls, 0);
    start(ranks, 2, 20, 20, waits_for_a_card);
    go(ranks, 2);
    assert_true(atomic_load(&lost_calls) > 0);
    assert_string_equal(lost_message, "something on a card did not end within 0.5 s");
    atomic_store(&lost_calls, 0);
}

/* ---- who may join ---- */

static void missing_ranks_are_listed(void **state) {
    (void)state;
    Rank ranks[4];
    start(ranks, 4, 1, 20, talk);
    ranks[0].numbers = ranks[2].numbers = NULL;
    pthread_create(&ranks[0].thread, NULL, rank_main, &ranks[0]);
    pthread_create(&ranks[2].thread, NULL, rank_main, &ranks[2]);
    pthread_join(ranks[0].thread, NULL);
    pthread_join(ranks[2].thread, NULL);
    assert_int_equal(ranks[0].joined, STATUS_PEER);
    assert_string_equal(ranks[0].message, "after 1 s these of 4 ranks had not come: 1, 3");
    assert_int_not_equal(ranks[2].status, STATUS_OK);
}

static void ranks_of_another_run_are_refused(void **state) {
    (void)state;
    Rank ranks[2];
    start(ranks, 2, 5, 5, talk); /* another number of ranks */
    ranks[1].o.ranks = 3;
    go(ranks, 2);
    assert_int_equal(ranks[0].joined, STATUS_USAGE);
    assert_non_null(strstr(ranks[0].message, "was started as one of 3 ranks, rank 0 as one of 2"));
    assert_int_equal(ranks[1].joined, STATUS_USAGE);
    assert_non_null(strstr(ranks[1].message, "rank 0 refuses: rank 1 on "));

    start(ranks, 2, 5, 5, talk); /* another build */
    ranks[1].o.build = "other";
    go(ranks, 2);
    assert_int_equal(ranks[0].joined, STATUS_USAGE);
    assert_non_null(strstr(ranks[1].message, "is build other, rank 0 is build test"));

    Rank three[3];
    start(three, 3, 5, 5, talk); /* one twice */
    three[2].o.rank = 1;
    go(three, 3);
    assert_int_equal(three[0].joined, STATUS_USAGE);
    assert_non_null(strstr(three[0].message, "two processes call themselves rank 1"));

    Peers *p;
    const PeersOptions bad = {.rank = 2, .ranks = 2};
    assert_int_equal(peers_join(&bad, &p), STATUS_USAGE);
}

static int connect_to(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static Status short_talk(Rank *r, Peers *p) {
    (void)r;
    return peers_agree(p, STATUS_OK);
}

/* Half a greeting and silence, garbage, another run: each is passed over, and the run goes on. */
static void strangers_are_passed_over(void **state) {
    (void)state;
    Rank ranks[2];
    start(ranks, 2, 20, 20, short_talk);
    const int half = connect_to(ranks[0].o.port), wrong = connect_to(ranks[0].o.port);
    char garbage[512];
    memset(garbage, 'x', sizeof garbage);
    assert_true(send(half, "ttvrank1", 8, 0) == 8);
    shutdown(half, SHUT_WR);
    assert_true(send(wrong, garbage, sizeof garbage, 0) == sizeof garbage);
    Rank other = ranks[1];
    other.o.run = 78;
    other.o.join_timeout_s = 1;
    pthread_create(&other.thread, NULL, rank_main, &other);
    go(ranks, 2);
    pthread_join(other.thread, NULL);
    close(half);
    close(wrong);
    assert_int_equal(ranks[0].status, STATUS_OK);
    assert_int_equal(ranks[1].status, STATUS_OK);
    assert_int_equal(other.joined, STATUS_PEER);
}

/* ---- the parts of a batch ---- */

static void shards_keep_pairs_together(void **state) {
    (void)state;
    for (int64_t ranks = 1; ranks <= 5; ranks++)
        for (int64_t local = 1; local <= 8; local++) {
            int seen[64] = {0};
            const int64_t batch = ranks * local;
            for (int64_t rank = 0; rank < ranks; rank++) {
                const Shard s = {rank, ranks};
                for (int64_t i = 0; i < local; i++) {
                    const int64_t at = shard_position(s, local, i);
                    assert_true(at >= i && at < batch);
                    if (i > 0) assert_true(at > shard_position(s, local, i - 1));
                    if (local % 2 == 0)
                        assert_int_equal(shard_position(s, local, local - 1 - i), batch - 1 - at);
                    seen[at]++;
                }
            }
            for (int64_t i = 0; i < batch; i++) assert_int_equal(seen[i], 1);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_have_the_same_bits_everywhere),
        cmocka_unit_test(alone_needs_nobody),
        cmocka_unit_test(a_failure_is_everybodys),
        cmocka_unit_test(a_rank_that_ends_is_named),
        cmocka_unit_test(who_goes_after_a_loss_is_not_lost),
        cmocka_unit_test(the_first_rank_can_be_lost_too),
        cmocka_unit_test(a_rank_that_does_not_come_is_given_up),
        cmocka_unit_test(the_right_one_is_blamed),
        cmocka_unit_test(what_broke_elsewhere_is_told),
        cmocka_unit_test(waiting_elsewhere_is_bounded),
        cmocka_unit_test(missing_ranks_are_listed),
        cmocka_unit_test(ranks_of_another_run_are_refused),
        cmocka_unit_test(strangers_are_passed_over),
        cmocka_unit_test(shards_keep_pairs_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
