/* SPDX-License-Identifier: Apache-2.0
 *
 * Seeded random numbers of the simulator: xoshiro256**, seeded by splitmix64. Streams of different purpose (schedule,
 * faults, workload, ids) are seeded apart, so that one more draw in the workload does not change which faults come. */
#ifndef SK_SIM_RNG_H
#define SK_SIM_RNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SIM_MILLION 1000000

struct sim_rng {
    uint64_t s[4];
};

static inline uint64_t sim_splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline void sim_rng_seed(struct sim_rng *rng, uint64_t seed, uint64_t stream)
{
    uint64_t state = seed * 0x2545f4914f6cdd1du + stream;

    for (int i = 0; i < 4; i++)
        rng->s[i] = sim_splitmix(&state);
}

static inline uint64_t sim_rng_next(struct sim_rng *rng)
{
    uint64_t *s = rng->s, m = s[1] * 5, result = ((m << 7) | (m >> 57)) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* A number in [0, n); n > 0. The bias of the multiplication is below 2^-32 for every n used here. */
static inline uint64_t sim_below(struct sim_rng *rng, uint64_t n)
{
    return ((sim_rng_next(rng) >> 32) * n) >> 32;
}

/* A number in [low, high]. */
static inline int64_t sim_between(struct sim_rng *rng, int64_t low, int64_t high)
{
    return high <= low ? low : low + (int64_t)(sim_rng_next(rng) % (uint64_t)(high - low + 1));
}

/* True with `ppm` parts in a million; 0 draws nothing. */
static inline bool sim_chance(struct sim_rng *rng, int64_t ppm)
{
    return ppm > 0 && (int64_t)sim_below(rng, SIM_MILLION) < ppm;
}

static inline bool sim_percent(struct sim_rng *rng, int percent)
{
    return sim_chance(rng, (int64_t)percent * 10000);
}

static inline void sim_fill(struct sim_rng *rng, void *out, size_t len)
{
    unsigned char *p = out;

    while (len > 0) {
        uint64_t word = sim_rng_next(rng);
        size_t step = len < sizeof(word) ? len : sizeof(word);

        memcpy(p, &word, step);
        p += step;
        len -= step;
    }
}

#endif
