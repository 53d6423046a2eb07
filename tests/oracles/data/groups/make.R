# Data and estimates of a nested and a crossed mixed model: Rscript make.R FOLDER
suppressMessages({library(lme4); library(glmmTMB); library(jsonlite)})
set.seed(1)
# Nested: 40 schools, 80 classes, 240 pupils, 720 rows.
class_of <- rep(1:80, each=3); school_of <- rep(1:40, each=2)
n <- 720; pupil <- rep(1:240, each=3); class <- class_of[pupil]; school <- school_of[class]
x <- round(rnorm(n), 2)
f <- 0.3 + 0.2*x + 0.4*rnorm(240)[pupil] + 0.3*rnorm(80)[class] + 0.25*rnorm(80)[class]*x + 0.3*rnorm(40)[school]
nested <- data.frame(x=x, school=school, class=class, pupil=pupil, y=rpois(n, exp(f)))
# Crossed: 45 x 40 levels with slopes of which the second group has none.
n <- 900; a <- sample(1:45, n, TRUE); b <- sample(1:40, n, TRUE); x <- round(rnorm(n), 2); m <- 3
f <- -0.2 + 0.4*x + 0.6*rnorm(45)[a] + 0.4*rnorm(45)[a]*x + 0.6*rnorm(40)[b]
crossed <- data.frame(x=x, a=a, b=b, y=rbinom(n, m, plogis(f)), n=m)
control <- glmerControl(optimizer="bobyqa", optCtrl=list(maxfun=1e5, rhoend=1e-8), tolPwrss=1e-12, calc.derivs=FALSE)
describe <- function(fit, tmb) list(
  logLik=as.numeric(logLik(fit)), beta=unname(fixef(fit)),
  covariances=lapply(VarCorr(fit), function(v) unname(as.matrix(v)[,,drop=FALSE]) + 0),
  glmmTMB_logLik=as.numeric(logLik(tmb)), glmmTMB_beta=unname(fixef(tmb)$cond),
  glmmTMB_covariances=lapply(VarCorr(tmb)$cond, function(v) unname(matrix(v, nrow(v))) + 0))
one <- y ~ x + (1 | school) + (x | class) + (1 | pupil)
two <- cbind(y, n - y) ~ x + (x | a) + (x | b)
out <- list(R=R.version.string, lme4=as.character(packageVersion("lme4")), glmmTMB=as.character(packageVersion("glmmTMB")),
  nested=describe(glmer(one, nested, poisson, control=control), glmmTMB(one, nested, poisson)),
  crossed=describe(glmer(two, crossed, binomial, control=control), glmmTMB(two, crossed, binomial)))
dir <- commandArgs(TRUE)[1]
write.csv(nested, file.path(dir, "nested.csv"), row.names=FALSE, quote=FALSE)
write.csv(crossed, file.path(dir, "crossed.csv"), row.names=FALSE, quote=FALSE)
write(toJSON(out, digits=NA, auto_unbox=TRUE, pretty=TRUE), file.path(dir, "groups.json"))
