package mien.client.vision;

/** The linear map of three variables that comes nearest to given values. */
final class LeastSquares {
    private LeastSquares() {}

    /** Returns x of the smallest |A x - b|, by the normal equations and Cramer's rule; A (n, 3) has full rank. */
    static double[] solve(double[][] a, double[] b) {
        double[][] normal = new double[3][3];
        double[] right = new double[3];
        for (int row = 0; row < a.length; row++) {
            for (int i = 0; i < 3; i++) {
                right[i] += a[row][i] * b[row];
                for (int j = 0; j < 3; j++) {
                    normal[i][j] += a[row][i] * a[row][j];
                }
            }
        }
        double whole = determinant(normal);
        double[] solution = new double[3];
        for (int axis = 0; axis < 3; axis++) {
            double[][] replaced = {normal[0].clone(), normal[1].clone(), normal[2].clone()};
            for (int i = 0; i < 3; i++) {
                replaced[i][axis] = right[i];
            }
            solution[axis] = determinant(replaced) / whole;
        }
        return solution;
    }

    private static double determinant(double[][] m) {
        return m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1])
                - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
                + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
    }
}
