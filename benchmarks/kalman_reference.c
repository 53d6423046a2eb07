/* Kalman filter and smoother of Matérn processes in C: what markov.py measures the library against.
 *
 *     cc -O3 -march=native -ffast-math -DBLOCKS=8 -shared -fPIC kalman_reference.c -o kalman_reference.so -lm
 *
 * The process is observed through y[k] = f(t[k]) + noise of variance r[k], with gap[k] = t[k] - t[k-1]. Every function
 * writes the smoothed mean and variance of f and returns the log likelihood:
 *
 *     matern32       one Matérn-3/2 process: state (f, f'), everything in scalars
 *     matern52       a sum of BLOCKS Matérn-5/2 processes: state (f, f', f'') each
 *     matern32_rts   as matern32, in the usual form: predict, update, Rauch-Tung-Striebel
 *     matern52_usual as matern52, in the usual form: predict, update, keep all moments, Bryson-Frazier
 *
 * The first two are ordered for speed, as far as their author could think. The filter goes from prediction to prediction and carries C = P - P∞. With h
 * the row that observes the state, A the transition and s = P h' / S the gain,
 *
 *     C⁺ = A C A' - w w' / S,   S = h P h' + r,   w = A P h':
 *
 * 1/S is needed last, so that the division runs beside the products, and Q does not appear. The smoother is Bryson and
 * Frazier's, backwards through
 *
 *     l⁻ = A'(l - h'(s'l + v/S)),   L⁻ = A'((I - s h)' L (I - s h) + h'h/S) A,
 *     mean = u + (h s) v - r s'l,   variance = r (h s - r s'L s),
 *
 * which needs nothing from the filter but the gain, 1/S and the predicted mean u (v = y - u): no inverse, and no
 * matrix is kept.
 *
 * `work` has room for workspace(n) doubles.
 */
#include <math.h>
#include <string.h>

#ifndef BLOCKS
#define BLOCKS 1
#endif

enum { B = BLOCKS, D = 3 * B, EACH_RTS = 5, EACH_2 = 4, EACH_BLOCKS = D + 2, EACH_USUAL = D + D * D + 2 };

/* The log determinant takes one logarithm for eight steps. */
typedef struct {
    double sum, product, squares;
} Likelihood;

static inline void observe(Likelihood *seen, long k, double S, double weighted_square)
{
    seen->squares += weighted_square;
    seen->product *= S;
    if ((k & 7) == 7) {
        seen->sum += log(seen->product);
        seen->product = 1;
    }
}

static double log_likelihood(const Likelihood *seen, long n)
{
    return -0.5 * (seen->sum + log(seen->product) + seen->squares + n * log(2 * M_PI));
}

long workspace(long n)
{
    const long small = 1 + EACH_RTS, large = B + EACH_USUAL; /* one decay a process, and what is kept */
    return n * (small > large ? small : large);
}

/* Matérn-3/2, state dim 2 ------------------------------------------------------------------------------------- */

typedef struct {
    double a, b, c, g; /* [a b; c g] */
} Transition2;

static inline Transition2 transition2(double gap, double decay, double rate)
{
    const double x = rate * gap;
    return (Transition2){decay + decay * x, decay * gap, -rate * x * decay, decay - decay * x};
}

double matern32_rts(long n, const double *restrict gap, const double *restrict y, const double *restrict r,
                    const double *restrict variance, const double *restrict lengthscale, double *restrict work,
                    double *restrict mean, double *restrict var)
{
    const double rate = sqrt(3.0) / *lengthscale, p0 = *variance, p1 = rate * rate * p0;
    double *restrict decay = work, *restrict kept = work + n;
    double m0 = 0, m1 = 0, P00 = p0, P01 = 0, P11 = p1;
    Likelihood seen = {0, 1, 0};
    for (long k = 0; k < n; k++)
        decay[k] = exp(-rate * gap[k]);
    for (long k = 0; k < n; k++) {
        if (k > 0) {
            const Transition2 A = transition2(gap[k], decay[k], rate);
            const double Q00 = p0 - A.a * A.a * p0 - A.b * A.b * p1, Q01 = -(A.a * A.c * p0 + A.b * A.g * p1);
            const double Q11 = p1 - A.c * A.c * p0 - A.g * A.g * p1;
            const double T00 = A.a * P00 + A.b * P01, T01 = A.a * P01 + A.b * P11;
            const double T10 = A.c * P00 + A.g * P01, T11 = A.c * P01 + A.g * P11;
            const double u0 = A.a * m0 + A.b * m1, u1 = A.c * m0 + A.g * m1;
            m0 = u0, m1 = u1;
            P00 = T00 * A.a + T01 * A.b + Q00, P01 = T00 * A.c + T01 * A.g + Q01, P11 = T10 * A.c + T11 * A.g + Q11;
        }
        const double S = P00 + r[k], v = y[k] - m0, s0 = P00 / S, s1 = P01 / S;
        observe(&seen, k, S, v * v / S);
        m0 += s0 * v, m1 += s1 * v;
        P11 -= s1 * P01, P01 -= s0 * P01, P00 -= s0 * P00;
        double *restrict out = kept + EACH_RTS * k;
        out[0] = m0, out[1] = m1, out[2] = P00, out[3] = P01, out[4] = P11;
    }
    mean[n - 1] = m0, var[n - 1] = P00;
    for (long k = n - 2; k >= 0; k--) {
        const Transition2 A = transition2(gap[k + 1], decay[k + 1], rate);
        const double *restrict in = kept + EACH_RTS * k;
        const double f0 = in[0], f1 = in[1], F00 = in[2], F01 = in[3], F11 = in[4];
        const double Q00 = p0 - A.a * A.a * p0 - A.b * A.b * p1, Q01 = -(A.a * A.c * p0 + A.b * A.g * p1);
        const double Q11 = p1 - A.c * A.c * p0 - A.g * A.g * p1;
        const double T00 = A.a * F00 + A.b * F01, T01 = A.a * F01 + A.b * F11;
        const double T10 = A.c * F00 + A.g * F01, T11 = A.c * F01 + A.g * F11;
        const double N00 = T00 * A.a + T01 * A.b + Q00, N01 = T00 * A.c + T01 * A.g + Q01;
        const double N11 = T10 * A.c + T11 * A.g + Q11, inverse = 1 / (N00 * N11 - N01 * N01);
        const double G00 = (T00 * N11 - T10 * N01) * inverse, G01 = (T10 * N00 - T00 * N01) * inverse;
        const double G10 = (T01 * N11 - T11 * N01) * inverse, G11 = (T11 * N00 - T01 * N01) * inverse;
        const double e0 = m0 - A.a * f0 - A.b * f1, e1 = m1 - A.c * f0 - A.g * f1;
        const double E00 = P00 - N00, E01 = P01 - N01, E11 = P11 - N11;
        const double H00 = G00 * E00 + G01 * E01, H01 = G00 * E01 + G01 * E11;
        const double H10 = G10 * E00 + G11 * E01, H11 = G10 * E01 + G11 * E11;
        m0 = f0 + G00 * e0 + G01 * e1, m1 = f1 + G10 * e0 + G11 * e1;
        P00 = F00 + H00 * G00 + H01 * G01, P01 = F01 + H00 * G10 + H01 * G11, P11 = F11 + H10 * G10 + H11 * G11;
        mean[k] = m0, var[k] = P00;
    }
    return log_likelihood(&seen, n);
}

double matern32(long n, const double *restrict gap, const double *restrict y, const double *restrict r,
                const double *restrict variance, const double *restrict lengthscale, double *restrict work,
                double *restrict mean, double *restrict var)
{
    const double rate = sqrt(3.0) / *lengthscale, p0 = *variance;
    double *restrict decay = work, *restrict kept = work + n;
    double m0 = 0, m1 = 0, C00 = 0, C01 = 0, C11 = 0;
    Likelihood seen = {0, 1, 0};
    for (long k = 0; k < n; k++)
        decay[k] = exp(-rate * gap[k]);
    for (long k = 0; k < n; k++) {
        const double S = C00 + (p0 + r[k]), iS = 1 / S, v = y[k] - m0;
        double *restrict out = kept + EACH_2 * k;
        out[0] = m0, out[1] = iS, out[2] = (C00 + p0) * iS, out[3] = C01 * iS;
        observe(&seen, k, S, v * v * iS);
        if (k + 1 == n)
            break;
        const Transition2 A = transition2(gap[k + 1], decay[k + 1], rate);
        const double T00 = A.a * C00 + A.b * C01, T01 = A.a * C01 + A.b * C11;
        const double T10 = A.c * C00 + A.g * C01, T11 = A.c * C01 + A.g * C11;
        const double w0 = T00 + A.a * p0, w1 = T10 + A.c * p0;
        const double u0 = A.a * m0 + A.b * m1, u1 = A.c * m0 + A.g * m1;
        m0 = u0 + w0 * (v * iS), m1 = u1 + w1 * (v * iS);
        /* The brackets keep -ffast-math from putting the division first. */
        C00 = (T00 * A.a + T01 * A.b) - (w0 * w0) * iS;
        C01 = (T00 * A.c + T01 * A.g) - (w0 * w1) * iS;
        C11 = (T10 * A.c + T11 * A.g) - (w1 * w1) * iS;
    }
    double l0 = 0, l1 = 0, L00 = 0, L01 = 0, L11 = 0;
    for (long k = n - 1; k >= 0; k--) {
        const Transition2 A = transition2(gap[k], decay[k], rate);
        const double *restrict in = kept + EACH_2 * k;
        const double u = in[0], iS = in[1], s0 = in[2], s1 = in[3], v = y[k] - u;
        const double z0 = L00 * s0 + L01 * s1, z1 = L01 * s0 + L11 * s1;
        mean[k] = u + s0 * v - r[k] * (s0 * l0 + s1 * l1);
        var[k] = r[k] * (s0 - r[k] * (s0 * z0 + s1 * z1));
        /* M = (I - s h) A does not wait for L. */
        const double M00 = (1 - s0) * A.a, M01 = (1 - s0) * A.b, M10 = A.c - s1 * A.a, M11 = A.g - s1 * A.b;
        const double T00 = L00 * M00 + L01 * M10, T01 = L00 * M01 + L01 * M11;
        const double T10 = L01 * M00 + L11 * M10, T11 = L01 * M01 + L11 * M11;
        const double n0 = M00 * l0 + M10 * l1 - A.a * (v * iS), n1 = M01 * l0 + M11 * l1 - A.b * (v * iS);
        l0 = n0, l1 = n1;
        L00 = (M00 * T00 + A.a * A.a * iS) + M10 * T10;
        L01 = (M00 * T01 + A.a * A.b * iS) + M10 * T11;
        L11 = (M01 * T01 + A.b * A.b * iS) + M11 * T11;
    }
    return log_likelihood(&seen, n);
}

/* A sum of Matérn-5/2, state dim 3 · BLOCKS --------------------------------------------------------------------- */

/* The transition of one process after a gap; decay = exp(-rate · gap). */
static inline void transition3(double A[3][3], double gap, double decay, double rate)
{
    const double x = rate * gap, half = 0.5 * x * x;
    A[0][0] = decay * (1 + x + half), A[0][1] = decay * gap * (1 + x), A[0][2] = decay * 0.5 * gap * gap;
    A[1][0] = -decay * rate * half, A[1][1] = decay * (1 + x - 2 * half), A[1][2] = decay * gap * (1 - 0.5 * x);
    A[2][0] = decay * rate * rate * (half - x), A[2][1] = decay * rate * (2 * half - 3 * x);
    A[2][2] = decay * (1 - 2 * x + half);
}

/* exp(-rate · gap), step after step, for all blocks. */
static void decays(long n, const double *restrict gap, const double rate[B], double *restrict decay)
{
    for (long k = 0; k < n; k++)
        for (int b = 0; b < B; b++)
            decay[B * k + b] = -rate[b] * gap[k];
    for (long k = 0; k < B * n; k++)
        decay[k] = exp(decay[k]);
}

/* The state is (f of all blocks, f' of all, f'' of all): A is then 3×3 with a vector in each entry, and
 * every innermost loop runs over neighbours in memory. */
typedef struct {
    double at[3][3][B];
} Transition;

typedef double Vector[3][B];
typedef double Matrix[3][B][3][B];

static inline void transition(Transition *restrict A, double gap, const double *restrict decay, const double rate[B])
{
    for (int b = 0; b < B; b++) {
        double one[3][3];
        transition3(one, gap, decay[b], rate[b]);
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                A->at[i][j][b] = one[i][j];
    }
}

static inline void transposed(Transition *restrict A, double gap, const double *restrict decay, const double rate[B])
{
    for (int b = 0; b < B; b++) {
        double one[3][3];
        transition3(one, gap, decay[b], rate[b]);
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                A->at[j][i][b] = one[i][j];
    }
}

/* Entry (i, b) of A x. */
static inline double times(const Transition *restrict A, const Vector x, int i, int b)
{
    return A->at[i][0][b] * x[0][b] + A->at[i][1][b] * x[1][b] + A->at[i][2][b] * x[2][b];
}

/* X = A X A' - w w' scale. */
static inline void carry(const Transition *restrict A, Matrix X, const Vector w, double scale)
{
    Matrix T;
    for (int a = 0; a < B; a++)
        for (int i = 0; i < 3; i++) {
            const double A0 = A->at[i][0][a], A1 = A->at[i][1][a], A2 = A->at[i][2][a];
            for (int j = 0; j < 3; j++)
                for (int b = 0; b < B; b++)
                    T[i][a][j][b] = A0 * X[0][a][j][b] + A1 * X[1][a][j][b] + A2 * X[2][a][j][b];
        }
    for (int i = 0; i < 3; i++)
        for (int a = 0; a < B; a++) {
            const double weight = w[i][a] * scale;
            for (int j = 0; j < 3; j++)
                for (int b = 0; b < B; b++)
                    X[i][a][j][b] = A->at[j][0][b] * T[i][a][0][b] + A->at[j][1][b] * T[i][a][1][b] +
                                    A->at[j][2][b] * T[i][a][2][b] - weight * w[j][b];
        }
}

double matern52(long n, const double *restrict gap, const double *restrict y, const double *restrict r,
                const double *restrict variance, const double *restrict lengthscale, double *restrict work,
                double *restrict mean, double *restrict var)
{
    double rate[B];
    double *restrict decay = work, *restrict kept = work + B * n;
    Transition A;
    Vector m = {{0}}, prior = {{0}};
    Matrix C = {{{{0}}}};
    Likelihood seen = {0, 1, 0};
    for (int b = 0; b < B; b++) {
        rate[b] = sqrt(5.0) / lengthscale[b];
        prior[0][b] = variance[b], prior[2][b] = -rate[b] * rate[b] * variance[b] / 3;
    }
    decays(n, gap, rate, decay);
    for (long k = 0; k < n; k++) {
        Vector Ph, w, next;
        double u = 0, S = r[k];
        memcpy(Ph, prior, sizeof Ph);
        for (int a = 0; a < B; a++)
            for (int j = 0; j < 3; j++)
                for (int b = 0; b < B; b++)
                    Ph[j][b] += C[0][a][j][b];
        for (int b = 0; b < B; b++)
            u += m[0][b], S += Ph[0][b];
        const double iS = 1 / S, v = y[k] - u;
        double *restrict out = kept + EACH_BLOCKS * k;
        for (int j = 0; j < 3; j++)
            for (int b = 0; b < B; b++)
                out[B * j + b] = Ph[j][b] * iS;
        out[D] = u, out[D + 1] = iS;
        observe(&seen, k, S, v * v * iS);
        if (k + 1 == n)
            break;
        transition(&A, gap[k + 1], decay + B * (k + 1), rate);
        for (int i = 0; i < 3; i++)
            for (int b = 0; b < B; b++) {
                w[i][b] = times(&A, Ph, i, b);
                next[i][b] = times(&A, m, i, b) + w[i][b] * (v * iS);
            }
        memcpy(m, next, sizeof m);
        carry(&A, C, w, iS);
    }
    Vector l = {{0}};
    const Vector nothing = {{0}};
    memset(C, 0, sizeof C); /* L from here on */
    for (long k = n - 1; k >= 0; k--) {
        Vector s, z = {{0}}, next;
        const double *restrict in = kept + EACH_BLOCKS * k;
        const double u = in[D], iS = in[D + 1], v = y[k] - u;
        double hs = 0, sl = 0, sLs = 0;
        memcpy(s, in, sizeof s);
        for (int i = 0; i < 3; i++)
            for (int a = 0; a < B; a++)
                for (int j = 0; j < 3; j++)
                    for (int b = 0; b < B; b++)
                        z[j][b] += s[i][a] * C[i][a][j][b];
        for (int b = 0; b < B; b++)
            hs += s[0][b];
        for (int i = 0; i < 3; i++)
            for (int b = 0; b < B; b++)
                sl += s[i][b] * l[i][b], sLs += s[i][b] * z[i][b];
        mean[k] = u + hs * v - r[k] * sl;
        var[k] = r[k] * (hs - r[k] * sLs);
        if (k == 0)
            break;
        for (int b = 0; b < B; b++)
            l[0][b] -= sl + v * iS;
        for (int a = 0; a < B; a++)
            for (int j = 0; j < 3; j++)
                for (int b = 0; b < B; b++)
                    C[0][a][j][b] -= z[j][b];
        for (int i = 0; i < 3; i++)
            for (int a = 0; a < B; a++) {
                const double less = i == 0 ? z[i][a] - sLs - iS : z[i][a];
                for (int b = 0; b < B; b++)
                    C[i][a][0][b] -= less;
            }
        transposed(&A, gap[k], decay + B * k, rate);
        for (int i = 0; i < 3; i++)
            for (int b = 0; b < B; b++)
                next[i][b] = times(&A, l, i, b);
        memcpy(l, next, sizeof l);
        carry(&A, C, nothing, 0);
    }
    return log_likelihood(&seen, n);
}

/* Sums of Matérn-5/2 in the usual form ------------------------------------------------------------------------ */

/* out = A in A' for a block diagonal A. */
static void congruence(double A[B][3][3], double (*restrict in)[D], double (*restrict out)[D])
{
    double half[D][D];
    for (int b = 0; b < B; b++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < D; j++)
                half[3 * b + i][j] = A[b][i][0] * in[3 * b][j] + A[b][i][1] * in[3 * b + 1][j] + A[b][i][2] * in[3 * b + 2][j];
    for (int i = 0; i < D; i++)
        for (int b = 0; b < B; b++)
            for (int j = 0; j < 3; j++)
                out[i][3 * b + j] = half[i][3 * b] * A[b][j][0] + half[i][3 * b + 1] * A[b][j][1] + half[i][3 * b + 2] * A[b][j][2];
}

double matern52_usual(long n, const double *restrict gap, const double *restrict y, const double *restrict r,
                      const double *restrict variance, const double *restrict lengthscale, double *restrict work,
                      double *restrict mean, double *restrict var)
{
    double stationary[B][3][3] = {{{0}}}, A[B][3][3], rate[B], P[D][D] = {{0}}, predicted[D][D], m[D] = {0}, u[D];
    Likelihood seen = {0, 1, 0};
    for (int b = 0; b < B; b++) {
        rate[b] = sqrt(5.0) / lengthscale[b];
        const double second = rate[b] * rate[b] * variance[b] / 3;
        stationary[b][0][0] = variance[b], stationary[b][1][1] = second;
        stationary[b][0][2] = stationary[b][2][0] = -second, stationary[b][2][2] = 3 * second * rate[b] * rate[b];
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                P[3 * b + i][3 * b + j] = stationary[b][i][j];
    }
    for (long k = 0; k < n; k++) {
        for (int b = 0; b < B; b++)
            transition3(A[b], k > 0 ? gap[k] : 0, exp(k > 0 ? -rate[b] * gap[k] : 0), rate[b]);
        for (int b = 0; b < B; b++)
            for (int i = 0; i < 3; i++)
                for (int j = 0; j < 3; j++)
                    P[3 * b + i][3 * b + j] -= stationary[b][i][j];
        congruence(A, P, predicted);
        double column[D], S = r[k], expected = 0;
        for (int b = 0; b < B; b++)
            for (int i = 0; i < 3; i++) {
                for (int j = 0; j < 3; j++)
                    predicted[3 * b + i][3 * b + j] += stationary[b][i][j];
                u[3 * b + i] = A[b][i][0] * m[3 * b] + A[b][i][1] * m[3 * b + 1] + A[b][i][2] * m[3 * b + 2];
            }
        for (int j = 0; j < D; j++) {
            column[j] = 0;
            for (int b = 0; b < B; b++)
                column[j] += predicted[3 * b][j];
        }
        for (int b = 0; b < B; b++)
            S += column[3 * b], expected += u[3 * b];
        const double weight = 1 / S, v = y[k] - expected;
        double *restrict kept = work + EACH_USUAL * k;
        memcpy(kept, u, sizeof u), memcpy(kept + D, predicted, sizeof predicted);
        kept[D + D * D] = v * weight, kept[D + D * D + 1] = weight;
        observe(&seen, k, S, v * v * weight);
        for (int i = 0; i < D; i++) {
            m[i] = u[i] + column[i] * weight * v;
            for (int j = 0; j < D; j++)
                P[i][j] = predicted[i][j] - column[i] * weight * column[j];
        }
    }
    double l[D] = {0}, L[D][D] = {{0}}, T[B][3][3];
    for (long k = n - 1; k >= 0; k--) {
        const double *restrict kept = work + EACH_USUAL * k;
        const double(*restrict moments)[D] = (const double(*)[D])(kept + D);
        const double vS = kept[D + D * D], weight = kept[D + D * D + 1];
        double column[D], seen_column[D], inner = 0, square = 0, f = 0, spread = 0, quadratic = 0;
        for (int j = 0; j < D; j++) {
            column[j] = 0;
            for (int b = 0; b < B; b++)
                column[j] += moments[3 * b][j];
        }
        for (int i = 0; i < D; i++) {
            seen_column[i] = 0;
            for (int j = 0; j < D; j++)
                seen_column[i] += L[i][j] * column[j];
            seen_column[i] *= weight;
        }
        for (int i = 0; i < D; i++)
            inner += column[i] * weight * l[i], square += column[i] * weight * seen_column[i];
        for (int a = 0; a < B; a++) {
            l[3 * a] -= inner + vS;
            for (int j = 0; j < D; j++)
                L[3 * a][j] -= seen_column[j], L[j][3 * a] -= seen_column[j];
        }
        for (int a = 0; a < B; a++)
            for (int b = 0; b < B; b++)
                L[3 * a][3 * b] += square + weight;
        for (int i = 0; i < D; i++) {
            double s = 0;
            for (int j = 0; j < D; j++)
                s += L[i][j] * column[j];
            quadratic += s * column[i], f -= column[i] * l[i];
        }
        for (int b = 0; b < B; b++)
            f += kept[3 * b], spread += column[3 * b];
        mean[k] = f, var[k] = spread - quadratic;
        double earlier[D], next[D][D];
        for (int b = 0; b < B; b++) {
            transition3(A[b], k > 0 ? gap[k] : 0, exp(k > 0 ? -rate[b] * gap[k] : 0), rate[b]);
            for (int i = 0; i < 3; i++) {
                earlier[3 * b + i] = A[b][0][i] * l[3 * b] + A[b][1][i] * l[3 * b + 1] + A[b][2][i] * l[3 * b + 2];
                for (int j = 0; j < 3; j++)
                    T[b][i][j] = A[b][j][i];
            }
        }
        congruence(T, L, next);
        memcpy(l, earlier, sizeof l), memcpy(L, next, sizeof L);
    }
    return log_likelihood(&seen, n);
}
